import { readFileSync } from 'node:fs'

/**
 * Returns how many descriptors this process may have open. Node raises its soft limit to the hard one when it starts. Returns
 * `Infinity` if there is no limit or no `/proc`.
 */
export function descriptorLimit(): number {
  try {
    const limits = readFileSync('/proc/self/limits', 'utf8')
    return Number(/^Max open files +(\d+)/m.exec(limits)?.[1] ?? Infinity)
  } catch {
    return Infinity
  }
}
