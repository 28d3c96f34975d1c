import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'

/** The steps of a lifecycle, in order. */
export type LifecycleStep = 'create until running' | 'stop' | 'until stopped' | 'delete'

/** The job that the lifecycle clients run. */
export type LifecycleJob = {
  readonly host: string
  readonly port: number
  readonly clients: number
  /** The warm-up time. Lifecycles that end within it are not counted. */
  readonly warmupMs: number
  readonly durationMs: number
  readonly headers: Readonly<Record<string, string>>
  /** The body of the create request. `{{n}}` in it becomes a unique text. */
  readonly body: string
}

/** The result that the lifecycle clients write. */
export type LifecycleResult = {
  /** The number of lifecycles that were completed within the measured time. */
  readonly lifecycles: number
  readonly stepsMs: Readonly<Record<LifecycleStep, readonly number[]>>
  /** The processor time that the clients used. */
  readonly cpuMs: number
}

/** Runs the lifecycle clients in a process of their own. Rejects when a reply is unexpected. */
export async function runLifecycles(job: LifecycleJob): Promise<LifecycleResult> {
  const child = spawn(process.execPath, [join(import.meta.dirname, 'lifecycle-clients.ts')], {
    stdio: ['pipe', 'pipe', 'inherit'],
  })
  const exit = once(child, 'exit')
  child.stdin.end(JSON.stringify(job))
  const [output] = await Promise.all([text(child.stdout), exit])
  if (child.exitCode !== 0) throw new Error(`the clients ended with ${String(child.exitCode)}`)
  return JSON.parse(output) as LifecycleResult // lifecycle-clients.ts wrote it
}
