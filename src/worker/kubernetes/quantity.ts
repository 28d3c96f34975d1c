const UNITS: Readonly<Record<string, number>> = {
  '': 1, n: 1e-9, u: 1e-6, m: 1e-3, k: 1e3, M: 1e6, G: 1e9, T: 1e12, P: 1e15, Ki: 2 ** 10, Mi: 2 ** 20, Gi: 2 ** 30, Ti: 2 ** 40, Pi: 2 ** 50,
} // prettier-ignore

/** Parses a quantity of Kubernetes, such as `500m`, `2` or `16Gi`. Null for another text. */
export function parseQuantity(text: string | undefined): number | null {
  const [, number = '', unit = ''] = /^(\d+(?:\.\d+)?)([a-zA-Z]*)$/.exec(text ?? '') ?? []
  const factor = UNITS[unit]
  return number === '' || factor === undefined ? null : Number(number) * factor
}
