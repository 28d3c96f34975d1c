import { resolve } from 'node:path'

/** One setting. Its flag overrides its environment variable, which overrides its default. */
export type Setting<T> = {
  readonly variable: string
  readonly flag: string | null
  readonly fallback: string | null
  readonly unit: string
  readonly meaning: string
  /** Returns the parsed value, or a description of the accepted values. */
  readonly parse: (text: string) => { readonly value: T } | { readonly accepted: string }
}

/** Accepts a text that is not empty. An empty address would mean all addresses. */
export const nonEmptyText: Setting<string>['parse'] = (value) =>
  value === '' ? { accepted: 'a text that is not empty' } : { value }

/** Accepts the path of a folder and makes it absolute. An empty path is refused, because it would be the current folder. */
export const directoryPath: Setting<string>['parse'] = (seen) =>
  seen === '' ? { accepted: 'the path of a folder' } : { value: resolve(seen) }

/** Accepts an http or https URL without a path. Returns its origin. */
export const httpOrigin: Setting<string>['parse'] = (seen) => {
  const url = URL.canParse(seen) ? new URL(seen) : null
  const isFine =
    url !== null &&
    /^https?:$/.test(url.protocol) &&
    /^\/?$/.test(url.pathname) &&
    url.search + url.hash + url.username === ''
  return isFine ? { value: url.origin } : { accepted: 'http:// or https:// with a host and, if need be, a port' }
}

/** Accepts integers from `least` to `most`. */
export function integerBetween(least: number, most: number): Setting<number>['parse'] {
  return (seen) => {
    const value = /^\d{1,9}$/.test(seen) ? Number(seen) : Number.NaN
    const accepted = `a whole number from ${String(least)} to ${String(most)}`
    return value >= least && value <= most ? { value } : { accepted }
  }
}

/** Accepts one of the given words. */
export function oneOf<const T extends string>(words: readonly T[]): Setting<T>['parse'] {
  return (seen) => {
    const value = words.find((word) => word === seen)
    return value === undefined ? { accepted: words.join(', ') } : { value }
  }
}
