"""A run in figures: charts for a paper or an issue (`epochal plot`), and one page with all of it (`epochal report`)."""
