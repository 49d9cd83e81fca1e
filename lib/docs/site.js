// Gives each cell of a table the name of its column, which site.css shows in a narrow window.
document.querySelectorAll("article table:not([class])").forEach((table) => {
  const names = Array.from(table.tHead.rows[0].cells, (cell) => cell.textContent);
  for (const row of table.tBodies[0].rows) {
    Array.from(row.cells).forEach((cell, column) => { cell.dataset.name = names[column]; });
  }
});
