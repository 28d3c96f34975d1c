import { text } from 'node:stream/consumers'
import { deleteCredential, listCredentials, saveCredential } from '../../control/orgs/registry-credentials.ts'
import { requireSameSealingKey } from '../../control/orgs/sealing-key.ts'
import type { OrgActor } from '../../domain/orgs/caller.ts'
import { systemRandom } from '../../lib/random.ts'
import { keyFingerprint, makeSeal } from '../../lib/seal.ts'
import { runOnOrg, type OrgAction } from './act-on-org.ts'
import type { OperatorDeps } from './borrow-control.ts'
import { UsageError, type Call, type Command } from './command.ts'
import { openDataFolder } from '../server/data-folder.ts'
import { printList } from './print-list.ts'

export const registry: Command = {
  usage: 'registry login HOST --username U --password-stdin | list | logout HOST [--org SLUG]',
  summary: "the organization's credentials for image registries; a password is read from standard input",
  run: async (call) => runOnOrg(call, await readAct(call)),
}

async function readAct(call: Call): Promise<OrgAction> {
  const [verb, host, ...rest] = call.args
  const username = call.texts['username']
  if (verb === 'list' && host === undefined) return list
  if (host !== undefined && rest.length === 0) {
    if (verb === 'logout') return loggingOut(host)
    if (verb === 'login' && username !== undefined && call.switches.has('password-stdin'))
      return loggingIn(call, { host, username })
  }
  throw new UsageError(`usage: sandyard ${registry.usage}`)
}

async function loggingIn(
  { config }: Call,
  input: { readonly host: string; readonly username: string },
): Promise<OrgAction> {
  const password = (await text(process.stdin)).replace(/\r?\n$/, '')
  if (password === '') throw new UsageError('the password is read from standard input, and there was none')
  const { sealingKey } = await openDataFolder(config.dataDir, systemRandom, config.secretKey)
  const seal = makeSeal(sealingKey, systemRandom)
  return async (control, acting) => {
    await requireSameSealingKey(control.db, keyFingerprint(sealingKey))
    const { id, host } = await saveCredential({ ...control, seal }, acting, { ...input, password })
    process.stdout.write(`saved for ${host}: credential ${id}\n`)
  }
}

function loggingOut(host: string): OrgAction {
  return async (control, acting) => {
    await deleteCredential(control, acting, { host })
    process.stdout.write(`the credential for ${host} is deleted\n`)
  }
}

function list(control: OperatorDeps, acting: OrgActor): Promise<void> {
  return printList(
    ['HOST', 'USERNAME', 'SAVED', 'ID'],
    (input) => listCredentials(control, acting, input),
    ({ host, username, created_at, id }) => [host, username, created_at.toISOString(), id],
  )
}
