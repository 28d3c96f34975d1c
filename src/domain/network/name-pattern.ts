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
  // without a text of its own for the dot: a judgement compares up to 64 names with up to 1,024 rules
  const start = name.length - pattern.domain_suffix.length
  return name.endsWith(pattern.domain_suffix) && (start === 0 || name[start - 1] === '.')
}
