import { addMember, changeMemberRole, listMembers, removeMember } from '../../control/orgs/members.ts'
import { ROLES, type OrgActor, type Role } from '../../domain/orgs/caller.ts'
import { runOnOrg, type OrgAction } from './act-on-org.ts'
import type { OperatorDeps } from './borrow-control.ts'
import { UsageError, type Call, type Command } from './command.ts'
import { printList } from './print-list.ts'

export const member: Command = {
  usage: `member add EMAIL [--role ${ROLES.join('|')}] [--name N] | role EMAIL ROLE | remove EMAIL | list [--org SLUG]`,
  summary: 'who belongs to an organization; its last owner stays',
  run: async (call) => runOnOrg(call, readAct(call)),
}

function readAct({ args, texts }: Call): OrgAction {
  const [verb, email, word, ...rest] = args
  if (verb === 'list' && email === undefined) return list
  if (email !== undefined && rest.length === 0) {
    if (verb === 'role' && word !== undefined) return giving(email, readRole(word))
    if (verb === 'remove' && word === undefined) return removing(email)
    if (verb === 'add' && word === undefined)
      return adding(email, { role: readRole(texts['role'] ?? 'member'), display_name: texts['name'] ?? null })
  }
  throw new UsageError(`usage: sandyard ${member.usage}`)
}

function adding(email: string, input: { readonly role: Role; readonly display_name: string | null }): OrgAction {
  return async (control, acting) => {
    await addMember(control, acting, { email, ...input })
    process.stdout.write(`${email} is a member as ${input.role}\n`)
  }
}

function giving(email: string, role: Role): OrgAction {
  return async (control, acting) => {
    await changeMemberRole(control, acting, { email, role })
    process.stdout.write(`${email} has the role ${role}\n`)
  }
}

function removing(email: string): OrgAction {
  return async (control, acting) => {
    await removeMember(control, acting, email)
    process.stdout.write(`${email} is no longer a member\n`)
  }
}

function list(control: OperatorDeps, acting: OrgActor): Promise<void> {
  return printList(
    ['E-MAIL', 'ROLE', 'NAME', 'JOINED'],
    (input) => listMembers(control, acting, input),
    ({ email, role, display_name, joined_at }) => [email, role, display_name, joined_at.toISOString()],
  )
}

function readRole(word: string): Role {
  const role = ROLES.find((one) => one === word)
  if (role === undefined) throw new UsageError(`a role is one of ${ROLES.join(', ')}`)
  return role
}
