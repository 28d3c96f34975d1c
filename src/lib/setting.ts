import { resolve } from 'node:path'

/** One setting: its variable, its flag, and how its text is read. A flag wins over a variable, that over the default. */
export type Setting<T> = {
  readonly variable: string
  readonly flag: string | null
  readonly fallback: string | null
  readonly unit: string
  readonly meaning: string
  /** The value, or in words what would be accepted. */
  readonly parse: (text: string) => { readonly value: T } | { readonly accepted: string }
}

/** Takes a text that is not empty: an empty address would mean all of them. */
export const nonEmptyText: Setting<string>['parse'] = (value) =>
  value === '' ? { accepted: 'a text that is not empty' } : { value }

/** Takes the path of a folder and makes it absolute; an empty one would be the current folder. */
export const directoryPath: Setting<string>['parse'] = (seen) =>
  seen === '' ? { accepted: 'the path of a folder' } : { value: resolve(seen) }

/** Takes the address of a server on the web, without a path; makes it an origin. */
export const httpOrigin: Setting<string>['parse'] = (seen) => {
  const url = URL.canParse(seen) ? new URL(seen) : null
  const isFine =
    url !== null &&
    /^https?:$/.test(url.protocol) &&
    /^\/?$/.test(url.pathname) &&
    url.search + url.hash + url.username === ''
  return isFine ? { value: url.origin } : { accepted: 'http:// or https:// with a host and, if need be, a port' }
}

/** Takes whole numbers within bounds, both included. */
export function integerBetween(least: number, most: number): Setting<number>['parse'] {
  return (seen) => {
    const value = /^\d{1,9}$/.test(seen) ? Number(seen) : Number.NaN
    const accepted = `a whole number from ${String(least)} to ${String(most)}`
    return value >= least && value <= most ? { value } : { accepted }
  }
}

/** Takes one of some words. */
export function oneOf<const T extends string>(words: readonly T[]): Setting<T>['parse'] {
  return (seen) => {
    const value = words.find((word) => word === seen)
    return value === undefined ? { accepted: words.join(', ') } : { value }
  }
}
