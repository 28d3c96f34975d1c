import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'

/** The command lines and environments of all processes except this one, which knows the values that a test looks for. */
export function readProcesses(): string {
  const ids = readdirSync('/proc').filter((name) => /^\d+$/.test(name) && name !== String(process.pid))
  return ids.flatMap((id) => ['cmdline', 'environ'].map((file) => readOrNothing(join('/proc', id, file)))).join('\n')
}

/** Reads a file, or an empty text if its process has ended. */
function readOrNothing(path: string): string {
  try {
    return readFileSync(path, 'latin1')
  } catch {
    return ''
  }
}
