import { Argument, Option, type Command } from 'commander'
import {
  addMember,
  changeMemberRole,
  listMembers,
  removeMember,
  setOperator,
  signOutMember,
} from '../../control/orgs/members.ts'
import { createSignInLink, inviteMember, type SignInLink } from '../../control/sign-in/links.ts'
import { ROLES, type Role } from '../../domain/orgs/caller.ts'
import { signInPath } from '../../domain/sign-in/session.ts'
import { runs, UsageError, type Call } from '../command.ts'
import { orgCommand, withOrg, type OperatorDeps } from './operator.ts'
import { printPages } from './output.ts'
import { findServerUrl } from './view/public-api.ts'

/** Defines `sandyard member`, which manages the members of an organization. */
export function defineMember(member: Command): void {
  member.addHelpText('after', '\nAn organization needs at least one owner.')
  runs(withRole(orgCommand(member, 'add <email>', 'add a member')).option('--name <name>', 'the name to display'), add)
  runs(withUrl(withRole(orgCommand(member, 'invite <email>', 'add a member and print a link to sign in'))), invite)
  runs(
    withUrl(orgCommand(member, 'login [email]', 'print a link with which a member signs in; the first owner if none is named')), // prettier-ignore
    login,
  )
  runs(orgCommand(member, 'sign-out <email>', "end a member's sessions"), signOut)
  runs(orgCommand(member, 'list', 'list the members'), list)
  runs(
    orgCommand(member, 'role <email>', 'give a member another role').addArgument(
      new Argument('<role>', 'the new role').choices(ROLES),
    ),
    change,
  )
  runs(
    orgCommand(member, 'operator <email>', 'let a member of the first organization see the whole installation')
      .addArgument(new Argument('<state>', 'whether').choices(['on', 'off'])), // prettier-ignore
    changeOperator,
  )
  runs(orgCommand(member, 'remove <email>', 'remove a member'), remove)
}

function withRole(command: Command): Command {
  return command.addOption(new Option('--role <role>', 'the role; member unless given').choices(ROLES))
}

function withUrl(command: Command): Command {
  return command.option('--url <url>', 'the address at which members open the dashboard')
}

async function add(call: Call): Promise<void> {
  const { args: [email = ''], texts } = call // prettier-ignore
  const role = readRole(texts['role'] ?? 'member')
  await withOrg(call, async (deps, acting) => {
    await addMember(deps, acting, { email, role, display_name: texts['name'] ?? null })
    process.stdout.write(`${email} is a member as ${role}\n`)
  })
}

async function invite(call: Call): Promise<void> {
  const { args: [email = ''], texts } = call // prettier-ignore
  const role = readRole(texts['role'] ?? 'member')
  await withOrg(call, async (deps, acting) => {
    await printLink(deps, call, await inviteMember(deps, acting, { email, role }))
  })
}

async function login(call: Call): Promise<void> {
  await withOrg(call, async (deps, acting) => {
    await printLink(deps, call, await createSignInLink(deps, acting, call.args[0] ?? null))
  })
}

/** Prints the link alone on standard output, so that a script can take it. */
async function printLink(deps: OperatorDeps, call: Call, { token, email, expires_at }: SignInLink): Promise<void> {
  const url = (await findServerUrl(deps, call)) ?? 'http://127.0.0.1:8080'
  process.stderr.write(`${email} signs in once with this link, until ${expires_at.toISOString()}:\n`)
  process.stdout.write(`${url}${signInPath(token)}\n`)
}

async function signOut(call: Call): Promise<void> {
  const [email = ''] = call.args
  await withOrg(call, async (deps, acting) => {
    const ended = await signOutMember(deps, acting, { email })
    process.stdout.write(`${String(ended)} sessions of ${email} ended\n`)
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

async function changeOperator(call: Call): Promise<void> {
  const [email = '', state = ''] = call.args
  await withOrg(call, async (deps, acting) => {
    await setOperator(deps, acting, { email, isOperator: state === 'on' })
    process.stdout.write(`${email} is ${state === 'on' ? 'an operator' : 'no operator'} of the installation\n`)
  })
}

async function remove(call: Call): Promise<void> {
  const [email = ''] = call.args
  await withOrg(call, async (deps, acting) => {
    await removeMember(deps, acting, { email })
    process.stdout.write(`${email} is no longer a member\n`)
  })
}

function readRole(word: string): Role {
  const role = ROLES.find((one) => one === word)
  if (role === undefined) throw new UsageError(`a role is one of ${ROLES.join(', ')}`)
  return role
}
