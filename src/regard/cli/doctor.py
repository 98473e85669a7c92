"""`regard doctor`: what this installation has, what it lacks, and what would run."""

import json as json_text
from typing import Annotated

from cyclopts import Parameter

from regard.cli.installation import extras, machine


def doctor(*, json: Annotated[bool, Parameter(negative=())] = False) -> None:
    """Show versions, devices, extras, and which backend would run each kind of score, with the reasons against others.

    Args:
        json: print it as JSON, for a program or for a report of a mistake.
    """
    from rich.console import Console
    from rich.table import Table

    from regard.cli.what_runs import findings

    found = {"machine": machine(), "extras": extras(), "backends": findings()}
    if json:
        print(json_text.dumps(found, indent=1, ensure_ascii=False))
        return
    table = Table(show_header=False, box=None, pad_edge=False)
    for name, finding in {
        **found["machine"],
        **{f"regard[{name}]": state for name, state in found["extras"].items()},
    }.items():
        table.add_row(name, finding)
    console = Console(markup=False, highlight=False)
    console.print(table)
    for finding in found["backends"]:
        console.print(f"\n{finding['what']}, {finding['size']}, on {finding['device']}: {finding['backend']}")
        for name, reason in finding["not"].items():
            console.print(f"  not {name}: {reason}", soft_wrap=True)
