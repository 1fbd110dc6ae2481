"""Parts by themselves."""
