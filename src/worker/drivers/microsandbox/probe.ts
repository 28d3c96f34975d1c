import { statfs } from 'node:fs/promises'
import { availableParallelism, totalmem } from 'node:os'
import type { Probe } from '../driver.ts'
import type { VmContext } from './context.ts'
import { describeIsolation, findMissingMicroVmRequirements } from './installation.ts'
import { MICROSANDBOX_ABILITIES } from './make-vm-config.ts'

const MIB = 1024 * 1024

/** What the machine offers to microVMs. Rejects with all that is missing, in one text for people. */
export async function probeVm({ dir, images, installation, settings }: VmContext): Promise<Probe> {
  const missing = await findMissingMicroVmRequirements()
  if (missing.length > 0) throw new Error(`microVMs can't run here: ${missing.join('; ')}`)
  const disk = await statfs(dir)
  return {
    report: {
      name: 'microsandbox',
      isolation: describeIsolation(installation.version),
      abilities: MICROSANDBOX_ABILITIES,
      images: await images.list(),
    },
    capacity: {
      vcpus: availableParallelism() * settings.cpuOvercommit,
      memory_mib: Math.floor(totalmem() / MIB),
      disk_mib: Math.floor((disk.bavail * disk.bsize) / MIB),
    },
  }
}
