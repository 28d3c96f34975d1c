/**
 * The program of the worker of `sandyard up`. It has no secret on its command line or in its environment: `up` sends it everything
 * over the pipe between them, and it ends when that pipe is closed.
 */
import { enableCompileCache } from 'node:module'
import { join } from 'node:path'

enableCompileCache(join(import.meta.dirname, '..', '..', '..', '.setup', 'compile-cache')) // as in cli.ts
await import('./run-worker-process.ts')
