import { readdir } from 'node:fs/promises'
import { join } from 'node:path'
import { isFileNotFound } from '../../lib/is-missing.ts'
import type { Config } from '../../config.ts'
import { fieldsNeedingOtherAbilities } from '../../domain/spec/required-abilities.ts'
import {
  findInstallation,
  describeIsolation,
  findMissingMicroVmRequirements,
} from '../../worker/drivers/microsandbox/installation.ts'
import { MICROSANDBOX_ABILITIES } from '../../worker/drivers/microsandbox/make-vm-config.ts'
import { DEFAULT_OCI_SETTINGS } from '../../worker/drivers/oci/context.ts'
import { OCI_ABILITIES, findMissingOciRequirements } from '../../worker/drivers/oci/run/probe.ts'
import type { FoundRuntime } from '../../worker/drivers/oci/run/runtime.ts'
import { microVmFolder, ociFolder } from './worker-storage.ts'

/** Drivers that run sandboxes, in the order of preference: the strongest isolation first. */
export const REAL_DRIVERS = ['microsandbox', 'oci'] as const
export type RealDriver = (typeof REAL_DRIVERS)[number]

/** How one driver stands on this machine. */
export type DriverSurvey = {
  readonly name: RealDriver
  /** What it would isolate sandboxes by; empty when it can't run. */
  readonly isolation: string
  /** Everything that keeps it from running here, in words. */
  readonly missing: readonly string[]
  /** Where in a request it is asked for what it does not offer. */
  readonly refusedFields: readonly string[]
  /** Whether disks of sandboxes are kept here that only it can run. */
  readonly hasSandboxes: boolean
}

export type DriverChoice = { readonly name: RealDriver | 'simulated'; readonly reason: string }

/** How each driver stands on this machine, in the order of preference. */
export async function surveyDrivers(
  config: Config,
  getRuntime: () => Promise<FoundRuntime>,
): Promise<readonly DriverSurvey[]> {
  return await Promise.all([surveyMicrosandbox(config), surveyOci(config, getRuntime)])
}

/**
 * The driver that the settings and the machine choose. A disk is its driver's: where sandboxes are kept that only one
 * driver can run, that one goes on, as with another they would begin anew. Otherwise the first that can run, or the last
 * one, whose opening then tells what is missing.
 */
export function chooseDriver(setting: Config['driver'], surveys: readonly DriverSurvey[]): DriverChoice {
  if (setting !== 'auto') return { name: setting, reason: 'the settings name it' }
  const keeping = surveys.filter(({ hasSandboxes }) => hasSandboxes)
  const only = keeping.length === 1 ? keeping[0] : undefined
  if (only !== undefined) return { name: only.name, reason: 'the disks of sandboxes that are kept here are its own' }
  const able = surveys.find(({ missing }) => missing.length === 0)
  if (able !== undefined) {
    const isFirst = able.name === surveys[0]?.name
    return {
      name: able.name,
      reason: isFirst ? 'it isolates most, and can run here' : 'it is the first that can run here',
    }
  }
  return { name: 'oci', reason: 'no driver can run here, and this one needs least' }
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
  return { name: 'oci', isolation, missing, refusedFields: fieldsNeedingOtherAbilities(OCI_ABILITIES), hasSandboxes }
}

async function hasEntries(folder: string): Promise<boolean> {
  try {
    return (await readdir(folder)).length > 0
  } catch (error) {
    if (isFileNotFound(error)) return false
    throw error
  }
}
