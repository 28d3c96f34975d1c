import { fork } from 'node:child_process'
import { once } from 'node:events'
import { join } from 'node:path'
import type { ResultRow } from './report.ts'

/** What a benchmark found. */
export type ApartResult = {
  readonly rows: readonly ResultRow[]
  /** The picture of the phases of a create, as SVG. */
  readonly picture: string | null
}

/**
 * Runs a benchmark in a process of its own. Many of them measure with a client in their own process, and its pauses count. With the
 * modules of all benchmarks, 256 MiB out of a volume took that client 1.0 to 1.3 s of processor time instead of 0.4, for collections of
 * garbage (2026-11-27). Rejects if the benchmark fails.
 */
export async function runApart(name: string, isQuick: boolean): Promise<ApartResult> {
  const child = fork(join(import.meta.dirname, '../one.ts'), [name, ...(isQuick ? ['quick'] : [])], {
    serialization: 'advanced',
  })
  const endWithUs = (): void => void child.kill('SIGTERM')
  process.once('exit', endWithUs)
  let result: ApartResult | null = null
  child.once('message', (sent) => {
    result = sent as ApartResult // one.ts sent it
  })
  const [code, signal] = await once(child, 'close')
  process.off('exit', endWithUs)
  if (result === null) throw new Error(`the benchmark ended with ${String(signal ?? code)}, as its output above says`)
  return result
}
