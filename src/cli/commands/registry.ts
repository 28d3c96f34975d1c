import { text } from 'node:stream/consumers'
import type { Command } from 'commander'
import { deleteCredential, listCredentials, saveCredential } from '../../control/orgs/registry-credentials.ts'
import { requireSameSealingKey } from '../../control/orgs/sealing-key.ts'
import { systemRandom } from '../../lib/random.ts'
import { keyFingerprint, makeSeal } from '../../lib/seal.ts'
import { openDataFolder } from '../server/data-folder.ts'
import { runs, UsageError, type Call } from '../command.ts'
import { orgCommand, withOrg } from './operator.ts'
import { printPages } from './output.ts'

/** Defines `sandyard registry`, which manages an organization's credentials for image registries. */
export function defineRegistry(registry: Command): void {
  runs(
    orgCommand(registry, 'login <host>', 'save a username and password for a registry')
      .requiredOption('--username <username>', 'the username at the registry')
      .requiredOption('--password-stdin', 'read the password from standard input'),
    logIn,
  )
  runs(orgCommand(registry, 'list', 'list the saved credentials, without passwords'), list)
  runs(orgCommand(registry, 'logout <host>', 'delete the credential for a registry'), logOut)
}

async function logIn(call: Call): Promise<void> {
  const { config, args: [given = ''], texts } = call // prettier-ignore
  const password = (await text(process.stdin)).replace(/\r?\n$/, '')
  if (password === '') throw new UsageError('standard input must contain the password, and it was empty')
  const { sealingKey } = await openDataFolder(config.dataDir, systemRandom, config.secretKey)
  const seal = makeSeal(sealingKey, systemRandom)
  await withOrg(call, async (deps, acting) => {
    await requireSameSealingKey(deps.db, keyFingerprint(sealingKey))
    const input = { host: given, username: texts['username'] ?? '', password }
    const { id, host } = await saveCredential({ ...deps, seal }, acting, input)
    process.stdout.write(`saved for ${host}: credential ${id}\n`)
  })
}

async function list(call: Call): Promise<void> {
  await withOrg(call, async (deps, acting) => {
    await printPages(
      ['HOST', 'USERNAME', 'SAVED', 'ID'],
      (input) => listCredentials(deps, acting, input),
      ({ host, username, created_at, id }) => [host, username, created_at.toISOString(), id],
    )
  })
}

async function logOut(call: Call): Promise<void> {
  const [host = ''] = call.args
  await withOrg(call, async (deps, acting) => {
    await deleteCredential(deps, acting, { host })
    process.stdout.write(`the credential for ${host} is deleted\n`)
  })
}
