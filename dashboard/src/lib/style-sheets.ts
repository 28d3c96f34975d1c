/**
 * Calls `work`, in which a library makes `<style>` elements. The Content-Security-Policy refuses their text, so what is
 * written to them becomes style sheets that scripts may make (CSSOM). Returns the function that removes these.
 */
export function withStyleSheets(work: () => void): () => void {
  const sheets: CSSStyleSheet[] = []
  const create = document.createElement.bind(document)
  const createDiverted = (name: string, options?: ElementCreationOptions): HTMLElement => {
    if (name !== 'style') return create(name, options)
    const element = create('template') // even an empty `<style>` is refused
    sheets.push(divertText(element))
    return element
  }
  Object.defineProperty(document, 'createElement', { value: createDiverted, configurable: true })
  try {
    work()
  } finally {
    Reflect.deleteProperty(document, 'createElement') // what it inherits is in force again
  }
  return () => {
    document.adoptedStyleSheets = document.adoptedStyleSheets.filter((sheet) => !sheets.includes(sheet))
  }
}

function divertText(element: HTMLElement): CSSStyleSheet {
  const sheet = new CSSStyleSheet()
  document.adoptedStyleSheets = [...document.adoptedStyleSheets, sheet]
  Object.defineProperty(element, 'textContent', {
    set(text: string) {
      sheet.replaceSync(text)
    },
  })
  return sheet
}
