import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'

/** The job that the load generator runs: one kind of request, repeated. */
export type LoadJob = {
  readonly host: string
  readonly port: number
  readonly connections: number
  /** The warm-up time. Replies within it are not counted. */
  readonly warmupMs: number
  readonly durationMs: number
  readonly method: string
  readonly path: string
  readonly headers: Readonly<Record<string, string>>
  /** The body of the request, in ASCII. `{{n}}` in it becomes a number that differs in each request. */
  readonly body: string
  readonly expectedStatus: number
}

/** The result that the load generator writes. */
export type LoadResult = {
  readonly latenciesMs: readonly number[]
  /** The numbers of replies with unexpected statuses, by status. */
  readonly unexpected: Readonly<Record<string, number>>
  /** The head and body of one reply. */
  readonly sample: string
  /** The processor time that the load generator used. */
  readonly cpuMs: number
}

/** Runs a job in a process of its own. Rejects when a reply has an unexpected status. */
export async function runLoad(job: LoadJob): Promise<LoadResult> {
  const child = spawn(process.execPath, [join(import.meta.dirname, 'load.ts')], { stdio: ['pipe', 'pipe', 'inherit'] })
  const exit = once(child, 'exit')
  child.stdin.end(JSON.stringify(job))
  const [output] = await Promise.all([text(child.stdout), exit])
  if (child.exitCode !== 0) throw new Error(`the load generator ended with ${String(child.exitCode)}`)
  const result = JSON.parse(output) as LoadResult // load.ts wrote it
  if (Object.keys(result.unexpected).length > 0)
    throw new Error(`unexpected replies: ${JSON.stringify(result.unexpected)}, such as ${result.sample.slice(0, 1000)}`)
  return result
}

/** The number of counted replies per second. */
export function repliesPerSecond(job: LoadJob, result: LoadResult): number {
  return result.latenciesMs.length / (job.durationMs / 1000)
}
