// What a page takes over from the page of Airflow that shows it: its theme, as its document has it, else as the user
// chose it last; and the tabs of a DAG, beside which ours would be the same once more.
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
  const root = new URL(document.currentScript.src).pathname.replace(/\/hindcast\/static\/shell\.js$/, "");
  if (readShell((shell) => shell.location.pathname.startsWith(`${root}/dags/`))) page.shell = "dag";
  apply();
  addEventListener("storage", apply);
  const options = { attributes: true, attributeFilter: ["class"] };
  readShell((shell) => new MutationObserver(apply).observe(shell.document.documentElement, options));
})();
