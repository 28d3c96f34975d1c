/** Texts for people. */

const BYTE_UNITS = ['B', 'KiB', 'MiB', 'GiB', 'TiB'] as const

export function bytes(count: number): string {
  const power = Math.min(BYTE_UNITS.length - 1, Math.floor(Math.log2(Math.max(1, count)) / 10))
  const value = count / 1024 ** power
  return `${value.toFixed(power === 0 || value >= 100 ? 0 : 1)} ${BYTE_UNITS[power] ?? 'B'}`
}

export const mebibytes = (mib: number): string => bytes(mib * 1024 * 1024)

/** `3 s`, `12 min`, `5 h`, `3 d`. */
export function duration(ms: number): string {
  const secs = Math.max(0, Math.round(ms / 1000))
  if (secs < 60) return `${String(secs)} s`
  if (secs < 3600) return `${String(Math.floor(secs / 60))} min`
  if (secs < 48 * 3600) return `${String(Math.floor(secs / 3600))} h`
  return `${String(Math.floor(secs / 86_400))} d`
}

export const number = (value: number, digits = 2): string =>
  value.toLocaleString('en', { maximumFractionDigits: digits })

/** A share of one vCPU. */
export const percent = (share: number): string => `${number(share * 100, share < 0.1 ? 1 : 0)} %`

/** Prices have no currency: the operator sets it with the prices. */
export const money = (cents: number): string =>
  (cents / 100).toLocaleString('en', { minimumFractionDigits: 2, maximumFractionDigits: 2 })

export function dateTime(iso: string | null | undefined): string {
  if (iso === null || iso === undefined) return ''
  return new Date(iso).toLocaleString('en-GB', { dateStyle: 'medium', timeStyle: 'medium' })
}

export const date = (iso: string): string =>
  new Date(iso).toLocaleDateString('en-GB', { dateStyle: 'medium', timeZone: 'UTC' })

const ACRONYMS: Readonly<Record<string, string>> = { api: 'API', ssh: 'SSH' }

/** `sandbox_out_of_memory` as `Sandbox out of memory`. */
export function words(code: string): string {
  const text = code
    .split('_')
    .map((word) => ACRONYMS[word] ?? word)
    .join(' ')
  return text.charAt(0).toUpperCase() + text.slice(1)
}

/** The escape sequences of terminals: of the kinds CSI and OSC, and those of two characters. */
const ESCAPES = new RegExp(String.raw`\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|.)`, 'g')

/** A log's text without escape sequences, control characters, and characters that turn the direction of text. */
export function plain(text: string): string {
  return text.replaceAll(ESCAPES, '').replaceAll(/(?![\t\n])[\p{Cc}\p{Bidi_Control}]/gu, '')
}
