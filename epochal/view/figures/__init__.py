"""A run in figures: one page with all of it (`epochal report`), and the charts in it."""
