"use strict";

// Takes the theme from the address: the page that leads here knows Airflow's, and a report, which is of no origin, cannot.
const theme = new URLSearchParams(location.search).get("theme");
if (["dark", "light"].includes(theme)) document.documentElement.dataset.theme = theme;
