"""The command `hindcast`: its arguments (`main`), and what each command does (`commands`)."""
