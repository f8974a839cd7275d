// Sets the theme that the reader chose before anything is painted.
{
  const chosen = localStorage.getItem("pellucid.theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
}
