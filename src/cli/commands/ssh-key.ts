import { readFile } from 'node:fs/promises'
import { text } from 'node:stream/consumers'
import type { Command } from 'commander'
import { readHostFingerprint } from '../../control/orgs/ssh-entries.ts'
import { addSshKey, listSshKeys, removeSshKey } from '../../control/orgs/ssh-keys.ts'
import { runs, UsageError, type Call } from '../command.ts'
import { operatorCommand, orgCommand, withOperator, withOrg } from './operator.ts'
import { printPages } from './output.ts'

/** Defines `sandyard ssh-key`, which manages the keys that open SSH connections to an organization's sandboxes. */
export function defineSshKey(sshKey: Command): void {
  runs(orgCommand(sshKey, 'add <name> <file>', 'add the public key in a file, or from standard input for -'), add)
  runs(orgCommand(sshKey, 'list', 'list the keys'), list)
  runs(orgCommand(sshKey, 'remove <fingerprint>', 'remove a key, and end its connections'), remove)
  runs(operatorCommand(sshKey, 'host', 'show the fingerprint by which SSH clients know the server'), host)
}

async function add(call: Call): Promise<void> {
  const [name = '', file = ''] = call.args
  const public_key = (file === '-' ? await text(process.stdin) : await readFile(file, 'utf8')).trim()
  await withOrg(call, async (deps, acting) => {
    const { fingerprint } = await addSshKey(deps, acting, { name, public_key })
    process.stdout.write(`added ${fingerprint}\n`)
  })
}

async function list(call: Call): Promise<void> {
  await withOrg(call, async (deps, acting) => {
    await printPages(
      ['NAME', 'FINGERPRINT', 'ADDED', 'ID'],
      (input) => listSshKeys(deps, acting, input),
      ({ name, fingerprint, created_at, id }) => [name, fingerprint, created_at.toISOString(), id],
    )
  })
}

async function remove(call: Call): Promise<void> {
  const [fingerprint = ''] = call.args
  await withOrg(call, async (deps, acting) => {
    const { name } = await removeSshKey(deps, acting, { fingerprint })
    process.stdout.write(`removed ${name}\n`)
  })
}

async function host(call: Call): Promise<void> {
  await withOperator(call, async ({ db }) => {
    const fingerprint = await readHostFingerprint({ db })
    if (fingerprint === null) throw new UsageError('there is no host key yet: the first server with SSH makes it')
    process.stdout.write(`${fingerprint}\n`)
  })
}
