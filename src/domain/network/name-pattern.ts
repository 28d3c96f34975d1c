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
  return 'domain' in pattern ? name === pattern.domain : isWithin(pattern.domain_suffix, name)
}

/** Whether a name is a domain or below it. Makes no text for the dot: a judgement compares up to 64 names with up to 1,024 rules. */
export function isWithin(domain: string, name: string): boolean {
  const start = name.length - domain.length
  return name.endsWith(domain) && (start === 0 || name[start - 1] === '.')
}
