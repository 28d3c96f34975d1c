import type { Destination } from '../spec/spec.ts'

/** The names that a rule matches: this name alone, or it and every name below it. In lower case, without outer dots. */
export type NamePattern = { readonly domain: string } | { readonly domain_suffix: string }

/** The names of a destination, or null if it isn't given by name. */
export function nameOf(destination: Destination): NamePattern | null {
  if (destination === 'any') return null
  return 'domain' in destination || 'domain_suffix' in destination ? destination : null
}

/** Whether a name in lower case, without outer dots, matches. */
export function hasName(pattern: NamePattern, name: string): boolean {
  if ('domain' in pattern) return name === pattern.domain
  return name === pattern.domain_suffix || name.endsWith(`.${pattern.domain_suffix}`)
}
