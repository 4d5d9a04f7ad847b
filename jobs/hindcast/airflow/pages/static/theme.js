// The theme of Airflow, where it shows a page: as its document has it, else as the user chose it last. Without Airflow
// the system's theme stays.
(() => {
  const THEMES = ["dark", "light"];
  const ofDocument = () => {
    try {
      const names = window.parent === window ? null : window.parent.document.documentElement.classList;
      return THEMES.find((theme) => names?.contains(theme));
    } catch {
      return undefined; // the page that shows ours is not of this server
    }
  };
  const chosen = () => {
    try {
      return THEMES.find((theme) => localStorage.getItem("theme") === theme);
    } catch {
      return undefined;
    }
  };
  const apply = () => {
    const theme = ofDocument() ?? chosen();
    if (theme) document.documentElement.dataset.theme = theme;
    else delete document.documentElement.dataset.theme;
  };
  apply();
  addEventListener("storage", apply);
  try {
    const options = { attributes: true, attributeFilter: ["class"] };
    if (window.parent !== window) new MutationObserver(apply).observe(window.parent.document.documentElement, options);
  } catch {
    // as above
  }
})();
