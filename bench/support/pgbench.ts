import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { runCommand } from '../../src/lib/run-command.ts'

export type PgbenchJob = {
  /** The libpq environment variables for the server. */
  readonly env: Readonly<Record<string, string>>
  readonly script: string
  readonly variables: Readonly<Record<string, string>>
  readonly clients: number
  readonly seconds: number
}

/** The path of pgbench, or null. If it is null, the set-up of `npm run bench` has printed the reason. */
export function pgbenchPath(): string | null {
  return process.env['SANDYARD_PGBENCH'] || null
}

/** Runs a script with prepared statements. Resolves with transactions per second, excluding the time to connect. */
export async function runPgbench(job: PgbenchJob): Promise<number> {
  const file = pgbenchPath()
  if (file === null) throw new Error('pgbench is not installed')
  const folder = await mkdtemp(join(tmpdir(), 'sandyard-pgbench-'))
  try {
    const script = join(folder, 'script.sql')
    await writeFile(script, job.script)
    const variables = Object.entries(job.variables).flatMap(([name, value]) => ['-D', `${name}=${value}`])
    const load = ['-c', String(job.clients), '-j', String(Math.min(2, job.clients)), '-T', String(job.seconds)]
    const { stdout } = await runCommand(file, ['-n', '-M', 'prepared', ...load, '-f', script, ...variables], {
      timeoutMs: (job.seconds + 60) * 1000,
      env: { PATH: process.env['PATH'], ...job.env },
    })
    const rate = /^tps = ([\d.]+)/m.exec(stdout)?.[1]
    if (rate === undefined || !/failed transactions: 0 /.test(stdout)) throw new Error(`pgbench said: ${stdout}`)
    return Number(rate)
  } finally {
    await rm(folder, { recursive: true })
  }
}
