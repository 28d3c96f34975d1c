import { availableParallelism, totalmem } from 'node:os'
import type { Capacity } from '../../domain/workers/worker.ts'
import { memoryForSandboxes } from '../../worker/drivers/shared/machine.ts'

/** The sandbox that a create request without `resources` gets. */
const USUAL = { vcpus: 1, memoryMib: 512 }

/** A machine: its processor cores, its memory, and the part of the memory that sandboxes leave to it. */
export type Machine = { readonly cores: number; readonly totalMib: number; readonly reservedMib: number }

type CapacityContext = { readonly machine: Machine; readonly defaultDiskMib: number }

/** Describes what a machine offers to sandboxes, what that is made of, and how many usual sandboxes fit. */
export function describeCapacity(offered: Capacity, { machine, defaultDiskMib }: CapacityContext): string {
  const { vcpus, memory_mib, disk_mib } = offered
  const { cores, totalMib, reservedMib } = machine
  const fitting = Math.floor(
    Math.min(
      vcpus / USUAL.vcpus,
      memory_mib / USUAL.memoryMib,
      disk_mib === null ? Infinity : disk_mib / defaultDiskMib,
    ),
  )
  const count =
    fitting === 0 ? 'no sandboxes' : fitting === 1 ? 'about 1 sandbox' : `about ${String(fitting)} sandboxes`
  return (
    `${String(vcpus)} vCPUs (${String(vcpus / cores)} for each of ${String(cores)} cores), ` +
    `${String(memory_mib)} MiB of memory (of ${String(totalMib)} MiB; ${String(reservedMib)} MiB are reserved for the machine)` +
    `${disk_mib === null ? '' : `, ${String(disk_mib)} MiB of disks`}: ` +
    `${count} of ${String(USUAL.vcpus)} vCPU and ${String(USUAL.memoryMib)} MiB`
  )
}

/** Reads the machine, with the reserve of `SANDYARD_HOST_RESERVE_MIB` or its default. Throws if that leaves no memory. */
export function readMachine(hostReserveMib: number | null): Machine {
  const totalMib = Math.floor(totalmem() / 1024 / 1024)
  return {
    cores: availableParallelism(),
    totalMib,
    reservedMib: totalMib - memoryForSandboxes(hostReserveMib, totalMib),
  }
}
