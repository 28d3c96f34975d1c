const SHOWN_CHARS = 300

/** The problem that an answer of the control plane tells, or what else stands in it. */
export function parseProblem(text: string): { readonly code: string | null; readonly message: string } {
  try {
    const body: unknown = JSON.parse(text)
    const error = fieldOf(body, 'error')
    const [code, message] = [fieldOf(error, 'code'), fieldOf(error, 'message')]
    if (typeof code === 'string' && typeof message === 'string') return { code, message }
  } catch (error) {
    if (!(error instanceof SyntaxError)) throw error // a proxy's page is no JSON
  }
  return { code: null, message: text.slice(0, SHOWN_CHARS) }
}

function fieldOf(value: unknown, name: string): unknown {
  return typeof value === 'object' && value !== null
    ? Object.entries(value).find(([key]) => key === name)?.[1]
    : undefined
}
