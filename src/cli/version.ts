import { readFileSync } from 'node:fs'
import { join } from 'node:path'

/** The version of this program, from package.json. */
export const VERSION = readVersion()

function readVersion(): string {
  const manifest: unknown = JSON.parse(readFileSync(join(import.meta.dirname, '..', '..', 'package.json'), 'utf8'))
  if (typeof manifest !== 'object' || manifest === null || !('version' in manifest)) return 'unknown'
  return String(manifest.version)
}
