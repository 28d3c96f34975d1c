import type { Log } from '../../../../lib/log.ts'
import type { GuestProcess } from '../../../channel/guest.ts'
import type { Container } from '../container.ts'
import type { RuntimeExit } from '../run/runtime/launcher.ts'
import { withDefaultSize, type ExecCli } from './exec-cli.ts'
import { makeProcessGroup, type ProcessGroup } from './process-group.ts'
import { describeStartFailure } from './start-failure.ts'

/**
 * A started process. `pid` is its id on the host, by which its terminal is found. `inner` is its id in the container.
 */
type Started = Pick<GuestProcess, 'describeMemoryKill'> & {
  readonly execCli: ExecCli
  readonly pid: number
  readonly inner: number
}

/** The process that an `exec` command or a fork server left. Rejects with `ExecFailure` if there is none. */
export async function asDetachedProcess(
  execCli: ExecCli,
  container: Container,
  { log, describeMemoryKill }: { readonly log: Log; readonly describeMemoryKill: () => string | null },
): Promise<GuestProcess> {
  const left = await execCli.left
  if (left === null) throw await describeStartFailure(execCli, container)
  const { pid, innerPid: inner } = left
  const group = makeProcessGroup(container.initPid, { cli: execCli.pid, process: pid }, log)
  return asGuestProcess({ execCli, pid, inner: inner ?? pid, describeMemoryKill }, group, ({ code }) => code ?? -1)
}

/** A process with the streams of `execCli`, which gets its signals as a group. `codeOf` reads its exit code from the runtime's. */
export function asGuestProcess(
  { execCli, pid, inner, describeMemoryKill }: Started,
  group: ProcessGroup,
  codeOf: (exit: RuntimeExit) => number,
): GuestProcess {
  return {
    pid: inner,
    stdin: execCli.stdin,
    stdout: execCli.stdout,
    stderr: execCli.stderr,
    resize(rows, cols) {
      execCli.resize(pid, withDefaultSize({ rows, cols }))
    },
    signal(signal) {
      group.signal(signal)
    },
    exited: execCli.ended.then(codeOf),
    ...(describeMemoryKill === undefined ? {} : { describeMemoryKill }),
  }
}
