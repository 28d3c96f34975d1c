import { access, constants, open } from 'node:fs/promises'
import { systemRandom } from '../lib/random.ts'
import { DEFAULT_OCI_SETTINGS } from '../worker/drivers/oci/context.ts'
import { whatIsMissing, whatToolboxLacks } from '../worker/drivers/oci/probe.ts'
import { probeNetwork } from '../worker/network/probe.ts'
import { chooseStorage } from '../worker/volumes/open-storage.ts'
import type { Call, Command } from './command.ts'
import { chooseRuntime, storagePlan } from './start-worker.ts'

export const doctor: Command = {
  usage: 'doctor',
  summary: 'tell what this machine can run, and what is missing',
  run: runDoctor,
}

type Finding = { readonly what: string; readonly isGood: boolean; readonly told: string }

/** What sandboxes run without, or what is made at the first start. */
const WELCOME = ['microVMs', 'data folder', 'volumes', 'files']

async function runDoctor({ config }: Call): Promise<number> {
  const findings: Finding[] = [
    { what: 'node', isGood: Number(process.versions.node.split('.')[0]) >= 24, told: process.version },
    {
      what: 'user',
      isGood: process.getuid?.() === 0,
      told: process.getuid?.() === 0 ? 'root' : 'not root: the oci driver needs root',
    },
    await find('data folder', async () => {
      await access(config.dataDir, constants.W_OK)
      return config.dataDir
    }),
    await find('microVMs', async () => {
      const device = await open('/dev/kvm', 'r+')
      await device.close()
      return '/dev/kvm opens, but this version has no driver for microVMs'
    }),
    await find('OCI runtime', async () => {
      const { isolation, passedOver } = await chooseRuntime(config)
      return [isolation, ...passedOver.map((flaw) => `passed over: ${flaw}`)].join('; ')
    }),
    await find('programs', () => {
      const missing = whatIsMissing(DEFAULT_OCI_SETTINGS.initBinary)
      return missing.length === 0 ? Promise.resolve('all there') : Promise.reject(new Error(missing.join('; ')))
    }),
    await find('files', () => {
      const missing = whatToolboxLacks()
      if (missing.length > 0) return Promise.reject(new Error(`no files of sandboxes: ${missing.join(', ')}`))
      return Promise.resolve('perl serves the files of sandboxes')
    }),
    await find('volumes', async () => {
      const choice = await chooseStorage(storagePlan(config))
      if (choice.kind === 'pool') return 'in a pool with btrfs quota groups: caps hold while a sandbox writes'
      if (!choice.isShared) throw new Error(`plain folders, and caps are refused: ${choice.whyNoCaps}`)
      return `plain folders in ${choice.root}, and caps are refused: ${choice.whyNoCaps}`
    }),
    await find('network', async () => {
      const probe = await probeNetwork(systemRandom)
      if (probe.missing.length > 0) throw new Error(probe.missing.join('; '))
      return `abilities: ${probe.abilities.join(', ')}`
    }),
  ]
  for (const { what, isGood, told } of findings)
    process.stdout.write(`${isGood ? 'ok     ' : 'MISSING'}  ${what.padEnd(12)} ${told}\n`)
  const needed = findings.filter(({ what }) => !WELCOME.includes(what))
  return needed.every(({ isGood }) => isGood) ? 0 : 1
}

async function find(what: string, look: () => Promise<string>): Promise<Finding> {
  try {
    return { what, isGood: true, told: await look() }
  } catch (error) {
    return { what, isGood: false, told: error instanceof Error ? error.message : String(error) }
  }
}
