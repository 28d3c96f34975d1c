import { readdir } from 'node:fs/promises'
import { join } from 'node:path'
import type { Config } from '../../config.ts'
import { systemClock } from '../../lib/clock.ts'
import { hasErrorCode } from '../../lib/error-code.ts'
import { once } from '../../lib/turns/once.ts'
import type { Driver } from '../../worker/drivers/driver.ts'
import { makeSimulatedDriver } from '../../worker/drivers/simulated.ts'
import { openKubernetesDriver } from './open-kubernetes-driver.ts'
import { openMicrosandboxDriver } from './open-microsandbox-driver.ts'
import { chooseRuntime, openOciDriver } from './open-oci-driver.ts'
import { fieldsNeedingOtherAbilities } from '../../domain/spec/required-abilities.ts'
import {
  findInstallation,
  describeIsolation,
  findMissingMicroVmRequirements,
} from '../../worker/drivers/microsandbox/installation.ts'
import { MICROSANDBOX_ABILITIES } from '../../worker/drivers/microsandbox/make-vm-config.ts'
import { findLackingImageAbilities } from '../../worker/drivers/oci/run/disk-image-abilities.ts'
import { DEFAULT_OCI_SETTINGS } from '../../worker/drivers/oci/context.ts'
import { OCI_ABILITIES, findMissingOciRequirements } from '../../worker/drivers/oci/run/runtime/probe.ts'
import type { FoundRuntime } from '../../worker/drivers/oci/run/runtime/runtime.ts'
import { microVmFolder, ociFolder, type DriverDeps } from './worker-storage.ts'

/** The drivers that run real sandboxes, the strongest isolation first. */
export const REAL_DRIVERS = ['microsandbox', 'oci'] as const
export type RealDriver = (typeof REAL_DRIVERS)[number]

/** The result of checking whether one driver can run sandboxes on this machine. */
export type DriverSurvey = {
  readonly name: RealDriver
  /** Describes the isolation of the driver. Empty when the driver can't run. */
  readonly isolation: string
  /** Everything that prevents the driver from running here. */
  readonly missing: readonly string[]
  /** The fields of a create request that the driver refuses. */
  readonly refusedFields: readonly string[]
  /** Whether this machine has disks of the driver's sandboxes. No other driver can run those sandboxes. */
  readonly hasSandboxes: boolean
}

export type DriverChoice = { readonly name: RealDriver | 'kubernetes' | 'simulated'; readonly reason: string }

/** Checks every driver on this machine, in the order of preference. */
export async function surveyDrivers(
  config: Config,
  getRuntime: () => Promise<FoundRuntime>,
): Promise<readonly DriverSurvey[]> {
  return await Promise.all([surveyMicrosandbox(config), surveyOci(config, getRuntime)])
}

/**
 * Chooses the driver. The setting has priority. Next, if the machine has disks of only one driver, that driver is
 * chosen, because another driver would start those sandboxes with empty disks. Otherwise the first driver that can run
 * is chosen. If none can, `oci` is chosen, and opening it reports what is missing.
 */
export function chooseDriver(setting: Config['driver'], surveys: readonly DriverSurvey[]): DriverChoice {
  if (setting !== 'auto') return { name: setting, reason: 'SANDYARD_DRIVER names it' }
  const keeping = surveys.filter(({ hasSandboxes }) => hasSandboxes)
  const only = keeping.length === 1 ? keeping[0] : undefined
  if (only !== undefined) return { name: only.name, reason: 'this machine holds disks of its sandboxes' }
  const able = surveys.find(({ missing }) => missing.length === 0)
  if (able !== undefined) {
    const isFirst = able.name === surveys[0]?.name
    return {
      name: able.name,
      reason: isFirst ? 'it has the strongest isolation and can run here' : 'it is the first that can run here',
    }
  }
  return { name: 'oci', reason: 'no driver can run here, and this one needs the least' }
}

type OpenDeps = DriverDeps & { readonly getRuntime: () => Promise<FoundRuntime> }

const DRIVER_OPENERS: Readonly<Record<DriverChoice['name'], (config: Config, deps: OpenDeps) => Promise<Driver>>> = {
  microsandbox: openMicrosandboxDriver,
  oci: openOciDriver,
  kubernetes: openKubernetesDriver,
  simulated: ({ diskMib, diskMaxMib }, { logs, metrics }) =>
    Promise.resolve(
      makeSimulatedDriver({ clock: systemClock, logs, metrics, defaultDiskMib: Math.min(diskMib, diskMaxMib) }),
    ),
}

/** Opens the driver that `chooseDriver` chooses. Rejects with the list of what the machine lacks for that driver. */
export async function openDriver(
  config: Config,
  deps: DriverDeps,
): Promise<{ readonly driver: Driver; readonly reason: string }> {
  const getRuntime = once(() => chooseRuntime(config)) // once, because the check of gVisor starts a sandbox
  const surveys = config.driver === 'auto' ? await surveyDrivers(config, getRuntime) : []
  const { name, reason } = chooseDriver(config.driver, surveys)
  return { driver: await DRIVER_OPENERS[name](config, { ...deps, getRuntime }), reason }
}

async function surveyMicrosandbox(config: Config): Promise<DriverSurvey> {
  const installation = findInstallation()
  return {
    name: 'microsandbox',
    isolation: installation === null ? '' : describeIsolation(installation.version),
    missing: await findMissingMicroVmRequirements(),
    refusedFields: fieldsNeedingOtherAbilities(MICROSANDBOX_ABILITIES),
    hasSandboxes: await hasEntries(join(microVmFolder(config), 'kept')),
  }
}

async function surveyOci(config: Config, getRuntime: () => Promise<FoundRuntime>): Promise<DriverSurvey> {
  const missing = [...findMissingOciRequirements(DEFAULT_OCI_SETTINGS.initBinary)]
  let isolation = ''
  try {
    isolation = (await getRuntime()).isolation
  } catch (error) {
    missing.push(error instanceof Error ? error.message : String(error))
  }
  const hasSandboxes = await hasEntries(join(ociFolder(config), 'disks', 'kept'))
  const lacking = findLackingImageAbilities(null)
  const abilities = OCI_ABILITIES.filter((ability) => !lacking.includes(ability))
  return { name: 'oci', isolation, missing, refusedFields: fieldsNeedingOtherAbilities(abilities), hasSandboxes }
}

async function hasEntries(folder: string): Promise<boolean> {
  try {
    return (await readdir(folder)).length > 0
  } catch (error) {
    if (hasErrorCode(error, 'ENOENT')) return false
    throw error
  }
}
