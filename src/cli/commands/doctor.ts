import { access, constants } from 'node:fs/promises'
import { once } from '../../lib/once.ts'
import { systemRandom } from '../../lib/random.ts'
import { DEFAULT_OCI_SETTINGS } from '../../worker/drivers/oci/context.ts'
import { findMissingOciRequirements, findMissingToolboxPrograms } from '../../worker/drivers/oci/run/probe.ts'
import { probeNetwork } from '../../worker/network/probe-network.ts'
import { chooseStorage } from '../../worker/volumes/open-volume-storage.ts'
import type { Command } from 'commander'
import { addSettings, runs, type Call } from '../command.ts'
import { chooseDriver, surveyDrivers, type DriverChoice, type DriverSurvey } from '../worker/choose-driver.ts'
import { chooseRuntime } from '../worker/open-oci-driver.ts'
import { volumeStorageConfig } from '../worker/worker-storage.ts'

/** `sandyard doctor`: what this machine can run. */
export function defineDoctor(doctor: Command): void {
  doctor.addHelpText('after', '\nThe exit code is 0 when the chosen driver can run sandboxes here, and 1 otherwise.')
  runs(addSettings(doctor, 'dataDir', 'driver', 'runtime', 'logLevel'), runDoctor)
}

type Finding = { readonly name: string; readonly isOk: boolean; readonly detail: string }

/** What sandboxes run without, or what is made at the first start. */
const OPTIONAL_FINDINGS = ['data folder', 'volumes', 'files']
/** What only sandboxes of the driver for OCI runtimes need. */
const OCI_ONLY_FINDINGS = ['OCI runtime', 'programs', 'network']

async function runDoctor({ config }: Call): Promise<number> {
  const getRuntime = once(() => chooseRuntime(config))
  const surveys = await surveyDrivers(config, getRuntime)
  const choice = chooseDriver(config.driver, surveys)
  const findings: Finding[] = [
    { name: 'node', isOk: Number(process.versions.node.split('.')[0]) >= 24, detail: process.version },
    {
      name: 'user',
      isOk: process.getuid?.() === 0,
      detail: process.getuid?.() === 0 ? 'root' : 'not root: drivers that run sandboxes need root',
    },
    await check('data folder', async () => {
      await access(config.dataDir, constants.W_OK)
      return config.dataDir
    }),
    await check('OCI runtime', async () => {
      const { isolation, unusable } = await getRuntime()
      return [isolation, ...unusable.map((flaw) => `passed over: ${flaw}`)].join('; ')
    }),
    await check('programs', () => {
      const missing = findMissingOciRequirements(DEFAULT_OCI_SETTINGS.initBinary)
      return missing.length === 0 ? Promise.resolve('all there') : Promise.reject(new Error(missing.join('; ')))
    }),
    await check('files', () => {
      const missing = findMissingToolboxPrograms()
      if (missing.length > 0) return Promise.reject(new Error(`no files of sandboxes: ${missing.join(', ')}`))
      return Promise.resolve('perl serves the files of sandboxes')
    }),
    await check('volumes', async () => {
      const choice = await chooseStorage(volumeStorageConfig(config))
      if (choice.kind === 'pool') return 'in a pool with btrfs quota groups: caps hold while a sandbox writes'
      if (!choice.isShared) throw new Error(`plain folders, and caps are refused: ${choice.whyNoCaps}`)
      return `plain folders in ${choice.root}, and caps are refused: ${choice.whyNoCaps}`
    }),
    await check('network', async () => {
      const probe = await probeNetwork(systemRandom)
      if (probe.missing.length > 0) throw new Error(probe.missing.join('; '))
      return `abilities: ${probe.abilities.join(', ')}`
    }),
  ]
  for (const { name, isOk, detail } of findings)
    process.stdout.write(`${isOk ? 'ok     ' : 'MISSING'}  ${name.padEnd(12)} ${detail}\n`)
  process.stdout.write(formatDrivers(surveys, choice).join(''))
  const unneeded = [...OPTIONAL_FINDINGS, ...(choice.name === 'oci' ? [] : OCI_ONLY_FINDINGS)]
  const needed = findings.filter(({ name }) => !unneeded.includes(name))
  const chosen = surveys.find(({ name }) => name === choice.name)
  return needed.every(({ isOk }) => isOk) && (chosen?.missing.length ?? 0) === 0 ? 0 : 1
}

/** The drivers in the order of preference, whether each can run here and what it refuses, and which one is taken. */
export function formatDrivers(surveys: readonly DriverSurvey[], choice: DriverChoice): readonly string[] {
  const line = (name: string, told: string): string => `  ${name.padEnd(13)} ${told}\n`
  const lines = surveys.flatMap(({ name, isolation, missing, refusedFields, hasSandboxes }) => {
    const told = missing.length === 0 ? `can run here: ${isolation}` : `can't run here: ${missing.join('; ')}`
    return [
      line(name, hasSandboxes ? `${told}; sandboxes of its own are kept here` : told),
      line('', `refuses: ${refusedFields.join(', ').replaceAll('`', '')}`), // they are written for docs/drivers.md
    ]
  })
  return [
    '\ndrivers, the preferred first:\n',
    ...lines,
    line('simulated', 'runs nothing, and is taken only by name'),
    `sandboxes run with: ${choice.name}, because ${choice.reason}\n`,
  ]
}

async function check(name: string, look: () => Promise<string>): Promise<Finding> {
  try {
    return { name, isOk: true, detail: await look() }
  } catch (error) {
    return { name, isOk: false, detail: error instanceof Error ? error.message : String(error) }
  }
}
