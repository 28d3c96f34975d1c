import { isWithin } from './name-pattern.ts'
import type { HostPattern } from '../spec/secrets.ts'

/** Whether a host name or an address, in lower case, matches a pattern. A wildcard `*.example.com` also matches `example.com`. */
export function matchesHost(pattern: HostPattern, host: string): boolean {
  if (pattern.type === 'any') return true
  if (pattern.type === 'exact') return host === pattern.value
  return isWithin(pattern.value.slice('*.'.length), host)
}
