"""The text of `manage.py help`: orderpost's commands with one line each, then the names of the others."""

from __future__ import annotations

import textwrap

from django.conf import settings
from django.core.management import ManagementUtility, get_commands, load_command_class


class Utility(ManagementUtility):
    """Django's command line with another list of the commands."""

    def main_help_text(self, commands_only: bool = False) -> str:
        """Return Django's text for a script that wants names alone, or if the settings are wrong."""
        if commands_only or self.settings_exception is not None:
            return super().main_help_text(commands_only)
        lines = our_commands()
        width = max(map(len, lines))
        others = " ".join(sorted(get_commands().keys() - lines.keys()))
        return "\n".join(
            [
                f"Type '{self.prog_name} help NAME' for the options of a command.",
                "",
                *(f"  {name:<{width}}  {line}" for name, line in lines.items()),
                "",
                "Django's and the libraries' commands:",
                textwrap.fill(others, width=100, initial_indent="  ", subsequent_indent="  "),
            ]
        )


def our_commands() -> dict[str, str]:
    """Return the first sentence of each of our commands' help, by name."""
    return {
        name: " ".join(load_command_class(app, name).help.split()).partition(". ")[0].rstrip(".") + "."
        for name, app in sorted(get_commands().items())
        if (settings.BASE_DIR / app / "management").is_dir()
    }
