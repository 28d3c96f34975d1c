import { Argument, Option, type Command } from 'commander'
import { addMember, changeMemberRole, listMembers, removeMember } from '../../control/orgs/members.ts'
import { ROLES, type Role } from '../../domain/orgs/caller.ts'
import { runs, UsageError, type Call } from '../command.ts'
import { orgCommand, withOrg } from './operator.ts'
import { printPages } from './output.ts'

/** Defines `sandyard member`, which manages the members of an organization. */
export function defineMember(member: Command): void {
  member.addHelpText('after', '\nAn organization needs at least one owner.')
  runs(
    orgCommand(member, 'add <email>', 'add a member')
      .addOption(new Option('--role <role>', 'the role; member unless given').choices(ROLES))
      .option('--name <name>', 'the name to display'),
    add,
  )
  runs(orgCommand(member, 'list', 'list the members'), list)
  runs(
    orgCommand(member, 'role <email>', 'give a member another role').addArgument(
      new Argument('<role>', 'the new role').choices(ROLES),
    ),
    change,
  )
  runs(orgCommand(member, 'remove <email>', 'remove a member'), remove)
}

async function add(call: Call): Promise<void> {
  const { args: [email = ''], texts } = call // prettier-ignore
  const role = readRole(texts['role'] ?? 'member')
  await withOrg(call, async (deps, acting) => {
    await addMember(deps, acting, { email, role, display_name: texts['name'] ?? null })
    process.stdout.write(`${email} is a member as ${role}\n`)
  })
}

async function list(call: Call): Promise<void> {
  await withOrg(call, async (deps, acting) => {
    await printPages(
      ['E-MAIL', 'ROLE', 'NAME', 'JOINED'],
      (input) => listMembers(deps, acting, input),
      ({ email, role, display_name, joined_at }) => [email, role, display_name, joined_at.toISOString()],
    )
  })
}

async function change(call: Call): Promise<void> {
  const [email = '', word = ''] = call.args
  const role = readRole(word)
  await withOrg(call, async (deps, acting) => {
    await changeMemberRole(deps, acting, { email, role })
    process.stdout.write(`${email} has the role ${role}\n`)
  })
}

async function remove(call: Call): Promise<void> {
  const [email = ''] = call.args
  await withOrg(call, async (deps, acting) => {
    await removeMember(deps, acting, email)
    process.stdout.write(`${email} is no longer a member\n`)
  })
}

function readRole(word: string): Role {
  const role = ROLES.find((one) => one === word)
  if (role === undefined) throw new UsageError(`a role is one of ${ROLES.join(', ')}`)
  return role
}
