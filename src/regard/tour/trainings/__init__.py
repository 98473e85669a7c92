"""The tour's own trainings: small translators that are looked at while they learn, side by side in processes."""
