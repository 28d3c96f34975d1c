import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'

/** What a client does with a sandbox, in this order. */
export type LifecycleStep = 'create until running' | 'stop' | 'until stopped' | 'delete'

/** What the clients are to do. */
export type LifecycleJob = {
  readonly host: string
  readonly port: number
  readonly clients: number
  /** What ends before it is not counted. */
  readonly warmupMs: number
  readonly durationMs: number
  readonly headers: Readonly<Record<string, string>>
  /** Of a create; `{{n}}` in it becomes what no other create has. */
  readonly body: string
}

/** What they saw. */
export type LifecycleResult = {
  /** Whole lives that ended in the time. */
  readonly lives: number
  readonly stepsMs: Readonly<Record<LifecycleStep, readonly number[]>>
  /** Processor time of the clients. */
  readonly cpuMs: number
}

/** Runs the clients in a process of their own. Rejects when a reply was not as a life needs it. */
export async function runLifecycles(job: LifecycleJob): Promise<LifecycleResult> {
  const child = spawn(process.execPath, [join(import.meta.dirname, 'lives.ts')], { stdio: ['pipe', 'pipe', 'inherit'] })
  const exit = once(child, 'exit')
  child.stdin.end(JSON.stringify(job))
  const [output] = await Promise.all([text(child.stdout), exit])
  if (child.exitCode !== 0) throw new Error(`the clients ended with ${String(child.exitCode)}`)
  return JSON.parse(output) as LifecycleResult // lives.ts wrote it
}
