// Shows formulas by KaTeX. The page has each as \(TEX\) in a line, or as \[TEX\] on lines of its own.
for (const element of document.querySelectorAll(".arithmatex")) {
  const text = element.textContent.trim()
  katex.render(text.slice(2, -2), element, { displayMode: text.startsWith("\\[") })
  const [mark] = /^[.,;:)]*/.exec(element.nextSibling?.data ?? "")
  element.querySelector(".katex-html > :last-child").append(mark) // A line does not begin with it.
  if (mark) element.nextSibling.data = element.nextSibling.data.slice(mark.length)
}
