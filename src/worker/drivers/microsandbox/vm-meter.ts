import { closeSync, openSync, readSync } from 'node:fs'
import type { SandboxId } from '../../../domain/ids.ts'
import { hasErrorCode } from '../../../lib/error-code.ts'
import type { Log } from '../../../lib/log.ts'
import type { Meter } from '../../metrics/meter.ts'
import { readInterfaceCounters } from '../../processes/interface-counters.ts'
import { measureTakenBytes } from './disk-limit.ts'

/** Linux counts the processor time of a process in ticks of 10 ms on every machine of the runtime: x86-64 and ARM64. */
const NS_PER_TICK = 1e7
const PAGE_BYTES = 4096

type VmMeterInput = { readonly home: string; readonly sandbox: SandboxId; readonly pid: number; readonly log: Log }

/**
 * Opens a meter of a microVM by the process of its runtime. Its memory is what the guest ever used and didn't give back. What
 * runs in the guest isn't counted. Throws if there is no such process.
 */
export function openVmMeter({ home, sandbox, pid, log }: VmMeterInput): Meter {
  const stat = openSync(`/proc/${String(pid)}/stat`, 'r')
  const statm = openSync(`/proc/${String(pid)}/statm`, 'r')
  let takenBytes: number | null = null
  const measureDisk = async (): Promise<void> => {
    try {
      takenBytes = await measureTakenBytes(home, sandbox)
    } catch (error) {
      log.warn({ error, sandbox_id: sandbox }, 'the disk of a microVM could not be measured')
    }
  }
  return {
    readCpuNs: () => nullIfGone(() => ticksOf(readText(stat)) * NS_PER_TICK),
    readMemoryBytes: () => nullIfGone(() => residentOf(readText(statm))),
    readRest() {
      void measureDisk() // the result is in the next reading; it never rejects
      return { processes: null, droppableBytes: 0, diskBytes: takenBytes, ...readInterfaceCounters(pid) }
    },
    close() {
      closeSync(stat)
      closeSync(statm)
    },
  }
}

/** Null if the process has ended. */
function nullIfGone(read: () => number): number | null {
  try {
    return read()
  } catch (error) {
    if (hasErrorCode(error, 'ESRCH')) return null
    throw error
  }
}

/** The ticks in user mode and in the kernel: fields 14 and 15 (proc(5)). The name of the process may have spaces. */
function ticksOf(stat: string): number {
  const afterName = stat.slice(stat.lastIndexOf(')') + 2).split(' ')
  return Number(afterName[11]) + Number(afterName[12])
}

function residentOf(statm: string): number {
  return Number(statm.split(' ')[1]) * PAGE_BYTES
}

const buffer = Buffer.alloc(4096)

function readText(file: number): string {
  return buffer.toString('latin1', 0, readSync(file, buffer, 0, buffer.length, 0))
}
