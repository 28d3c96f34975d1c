import type { Probe } from '../driver.ts'
import { measureCapacity } from '../shared/machine.ts'
import type { VmContext } from './context.ts'
import { describeIsolation, findMissingMicroVmRequirements } from './installation.ts'
import { MICROSANDBOX_ABILITIES } from './make-vm-config.ts'

/** What the machine offers to microVMs. Rejects with all that is missing, in one text for people. */
export async function probeVm({ dir, images, installation, settings }: VmContext): Promise<Probe> {
  const missing = await findMissingMicroVmRequirements()
  if (missing.length > 0) throw new Error(`microVMs can't run here: ${missing.join('; ')}`)
  return {
    report: {
      name: 'microsandbox',
      isolation: describeIsolation(installation.version),
      abilities: MICROSANDBOX_ABILITIES,
      images: await images.list(),
    },
    capacity: await measureCapacity(dir, settings.cpuOvercommit),
  }
}
