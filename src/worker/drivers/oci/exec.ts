import { rm, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import type { Log } from '../../../lib/log.ts'
import { ExecFailure } from '../../channel/guest.ts'
import type { Guest, GuestExec, GuestProcess } from '../../channel/guest.ts'
import type { Container } from './container.ts'
import { startPiped } from './exec-carrier.ts'
import type { Carrier, TerminalSize } from './exec-carrier.ts'
import { planProcess, readProcessBase } from './exec-plan.ts'
import type { ProcessBase } from './exec-plan.ts'
import { exitCodeOf } from './exec-status.ts'
import { startOnTerminal } from './exec-terminal.ts'
import { makeFifoPool } from './fifo-pool.ts'
import { makePidFiles } from './pid-file.ts'
import { innerPid, makeProcessGroup } from './process-group.ts'
import type { PtyBinding } from './pty-binding.ts'

export type ContainerGuestDeps = {
  readonly log: Log
  /** From `loadPtyBinding`; null makes terminals by script(1). */
  readonly pty: PtyBinding | null
}

/** A runtime that has not started a process after this will not: its container is frozen, or the machine is. */
const START_TIMEOUT_MS = 30_000

/** The size of a terminal whose request has a zero in it, which programs can't draw on. */
const USUAL_SIZE: TerminalSize = { rows: 24, cols: 80 }

/**
 * Runs processes in a container by its runtime's `exec`. One guest serves any number of channels of its container; make
 * one for each container, since it keeps pipes ready. Needs root, and the container's bundle in `runDir`.
 */
export function makeContainerGuest(container: Container, deps: ContainerGuestDeps): Guest {
  const pool = makeFifoPool(container.runDir, deps.log)
  const pidFiles = makePidFiles(pool.folder)
  let base: Promise<ProcessBase> | null = null
  let count = 0

  const readBase = (): Promise<ProcessBase> => {
    base ??= readProcessBase(container.runDir).catch((error: unknown) => {
      base = null
      throw error
    })
    return base
  }
  const start = async (request: GuestExec, files: ExecFiles): Promise<GuestProcess> => {
    const plan = await planProcess(container, await readBase(), request)
    await writeFile(files.plan, JSON.stringify(plan), { mode: 0o600 })
    const command = [...container.runtime, 'exec', '--process', files.plan, '--pid-file', files.pid, container.id]
    const carrier =
      request.tty === null ? await startPiped(pool, command) : await startOnTerminal(deps, command, request.tty)
    const timer = setTimeout(() => {
      killCli(carrier)
    }, START_TIMEOUT_MS)
    try {
      const pid = await pidFiles.wait(files.pid, carrier.ended)
      if (pid === null) throw await explain(carrier)
      return adopt(container, carrier, pid)
    } catch (error) {
      killCli(carrier)
      throw error
    } finally {
      clearTimeout(timer)
    }
  }

  return {
    async exec(request) {
      const name = String(count++)
      const files = { plan: join(pool.folder, `${name}.json`), pid: join(pool.folder, `${name}.pid`) }
      try {
        return await start({ ...request, tty: request.tty === null ? null : sizeOf(request.tty) }, files)
      } finally {
        await Promise.all([rm(files.plan, { force: true }), rm(files.pid, { force: true })])
      }
    },
  }
}

type ExecFiles = { readonly plan: string; readonly pid: string }

/** Ends a command line that has not started its process, with what it may have forked. */
function killCli({ cliPid, isRunning }: Carrier): void {
  if (isRunning()) process.kill(-cliPid, 'SIGKILL')
}

function sizeOf(tty: TerminalSize): TerminalSize {
  return tty.rows === 0 || tty.cols === 0 ? USUAL_SIZE : tty
}

function adopt(container: Container, carrier: Carrier, pid: number): GuestProcess {
  const group = makeProcessGroup(container.initPid, { cli: carrier.cliPid, process: pid })
  const sent = new Set<number>()
  return {
    pid: innerPid(pid) ?? pid,
    stdin: carrier.stdin,
    stdout: carrier.stdout,
    stderr: carrier.stderr,
    resize(rows, cols) {
      carrier.resize(pid, sizeOf({ rows, cols }))
    },
    signal(signal) {
      sent.add(signal)
      group.signal(signal)
    },
    exited: carrier.ended.then((exit) => exitCodeOf(exit, sent)),
  }
}

/** The most of a runtime's last words that is told to the client, in bytes. */
const LAST_WORDS_BYTES = 1000

/** What to say when a runtime ended without having started the process, though all that can be checked was fine. */
async function explain(carrier: Carrier): Promise<ExecFailure> {
  carrier.stdin.destroy()
  const output = carrier.stderr ?? carrier.stdout
  const chunks: Buffer[] = []
  for await (const chunk of output) {
    if (chunk instanceof Buffer) chunks.push(chunk)
  }
  carrier.stdout.destroy()
  const said = Buffer.concat(chunks).toString('utf8').trim().slice(-LAST_WORDS_BYTES)
  return new ExecFailure(
    'other',
    `the runtime could not start the process: ${said === '' ? 'it did not say why' : said}`,
  )
}
