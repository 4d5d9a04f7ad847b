// What a page takes over from the page of Airflow that shows it: its theme, as its document has it, else as the user
// chose it last; and the tabs of a DAG, beside which ours would be the same once more. It leads out of its frame.
(() => {
  const THEMES = ["dark", "light"];
  const page = document.documentElement.dataset;
  const readShell = (read) => {
    try {
      return window.parent === window ? undefined : read(window.parent);
    } catch {
      return undefined; // it is of another server
    }
  };
  const readChoice = () => {
    try {
      return localStorage.getItem("theme");
    } catch {
      return undefined;
    }
  };
  const apply = () => {
    const names = readShell((shell) => shell.document.documentElement.classList);
    const theme = THEMES.find((it) => names?.contains(it)) ?? THEMES.find((it) => it === readChoice());
    if (theme) page.theme = theme;
    else delete page.theme;
  };
  const addTheme = (link) => {
    const address = new URL(link.href);
    if (!page.theme || !address.pathname.startsWith(`${root}/hindcast/reports/`)) return;
    address.searchParams.set("theme", page.theme); // a report, which is of no origin, can ask nobody
    link.href = address;
  };
  const openOutside = (link) => {
    // Airflow's frame lets nothing in it replace the page around it; a link of that page may.
    readShell((shell) => Object.assign(shell.document.createElement("a"), { href: link.href }).click());
  };
  const root = new URL(document.currentScript.src).pathname.replace(/\/hindcast\/static\/shell\.js$/, "");
  if (readShell((shell) => shell.location.pathname.startsWith(`${root}/dags/`))) page.shell = "dag";
  apply();
  addEventListener("storage", apply);
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[href]");
    if (!link) return;
    addTheme(link);
    if (link.target !== "_top" || window.parent === window) return;
    event.preventDefault();
    openOutside(link);
  });
  // Another table has other changes: choosing it asks at once.
  document.addEventListener("change", (event) => {
    if (event.target.matches("select[data-submit]")) event.target.form.requestSubmit();
  });
  document.addEventListener("DOMContentLoaded", () => {
    const link = document.querySelector("a[data-open]");
    if (!link) return;
    addTheme(link);
    location.replace(link.href);
  });
  const options = { attributes: true, attributeFilter: ["class"] };
  readShell((shell) => new MutationObserver(apply).observe(shell.document.documentElement, options));
})();
