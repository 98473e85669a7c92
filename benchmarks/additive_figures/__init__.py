"""The page on additive attention: its figures and tables, drawn and written from kept results and nothing else."""
