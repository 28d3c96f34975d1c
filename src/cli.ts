import { enableCompileCache } from 'node:module'
import { join } from 'node:path'

// Compiled code is kept beside the installation, not in /tmp, where another user could put it: a command starts in half
// the time (2026-11).
enableCompileCache(join(import.meta.dirname, '..', '.setup', 'compile-cache'))
await import('./cli/main.ts')
