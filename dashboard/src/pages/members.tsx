import { useState } from 'preact/hooks'
import { at, listAll, patch, post, remove } from '../lib/api.ts'
import { dateTime } from '../lib/format.ts'
import { useLoad } from '../lib/load.ts'
import { mayAdmin, session } from '../lib/session.ts'
import type { Invitation, Member, Session } from '../lib/types.ts'
import { confirm } from '../ui/confirm.tsx'
import { Form, SelectField, TextField, type FormValues } from '../ui/form.tsx'
import { Load } from '../ui/load.tsx'
import { Page, Section } from '../ui/page.tsx'
import { Copy, Facts } from '../ui/small.tsx'
import { Table } from '../ui/table.tsx'
import { attempt, toast } from '../ui/toast.tsx'

const ROLES = ['viewer', 'member', 'admin', 'owner'] as const

/** The people of the organization: invited, given a role and removed here by those who may. */
export default function Members() {
  const members = useLoad((signal) => listAll<Member>('/v1/members', { signal }), [])
  const [invited, setInvited] = useState<Invitation | null>(null)
  const own = session.value === 'loading' ? null : session.value
  const invite = async (values: FormValues): Promise<void> => {
    setInvited(await post<Invitation>('/v1/members', { email: values.text('email'), role: values.text('role') }))
    members.reload()
  }
  const change = async ({ id, email }: Member, role: string): Promise<void> => {
    await patch(at`/v1/members/${id}`, { role })
    toast(`${email} is ${role} now`)
    members.reload()
  }
  const expel = async ({ id, email }: Member): Promise<void> => {
    const text = 'The person is signed out at once. What they made stays.'
    if (!(await confirm({ title: `Remove ${email}?`, text, action: 'Remove' }))) return
    await remove(at`/v1/members/${id}`)
    toast(`Removed ${email}`)
    members.reload()
  }
  return (
    <Page title="Members" lead="The people of this organization, and what their roles let them do.">
      {invited === null ? null : (
        <Section title={`The link of ${invited.member.email}`}>
          <p>
            Send it to the person. It is shown only once, signs them in once, and works until{' '}
            {dateTime(invited.expires_at)}.
          </p>
          <Copy text={`${location.origin}${invited.sign_in_path}`} label="Link" />
        </Section>
      )}
      {mayAdmin.value ? (
        <Section title="Invite a person">
          <Form action="Invite" onSubmit={invite}>
            <div class="columns">
              <TextField label="E-mail address" name="email" isRequired placeholder="ada@example.org" />
              <SelectField
                label="Role"
                name="role"
                choices={rolesFor(own).map((role) => ({ value: role, label: role }))}
              />
            </div>
          </Form>
        </Section>
      ) : null}
      <Load of={members}>
        {(list) => (
          <Table
            label="Members"
            rows={list}
            keyOf={({ id }) => id}
            columns={[
              { title: 'E-mail', cell: ({ email }) => email },
              { title: 'Name', cell: ({ display_name }) => display_name ?? '' },
              {
                title: 'Role',
                cell: (member) =>
                  mayChange(own, member) ? (
                    <select
                      aria-label={`Role of ${member.email}`}
                      value={member.role}
                      onChange={({ currentTarget: { value } }) =>
                        attempt(() => change(member, value).finally(members.reload))
                      }
                    >
                      {rolesFor(own).map((role) => (
                        <option key={role} value={role}>
                          {role}
                        </option>
                      ))}
                    </select>
                  ) : (
                    member.role
                  ),
              },
              { title: 'Since', cell: ({ joined_at }) => dateTime(joined_at) },
              {
                title: '',
                cell: (member) =>
                  mayChange(own, member) ? (
                    <button type="button" class="button small danger" onClick={() => attempt(() => expel(member))}>
                      Remove
                    </button>
                  ) : null,
              },
            ]}
          />
        )}
      </Load>
      <Section title="Roles">
        <Facts
          of={[
            ['viewer', 'Reads everything but keys and credentials.'],
            ['member', 'Also uses sandboxes, volumes and files.'],
            ['admin', 'Also manages keys, credentials and members.'],
            ['owner', 'Also manages owners.'],
          ]}
        />
      </Section>
    </Page>
  )
}

function rolesFor(own: Session | null): readonly (typeof ROLES)[number][] {
  return own?.role === 'owner' ? ROLES : ROLES.filter((role) => role !== 'owner')
}

/** Whether this member may be changed here. People don't change themselves by mistake. The server decides. */
function mayChange(own: Session | null, { role, user_id }: Member): boolean {
  return mayAdmin.value && own !== null && user_id !== own.user.id && (role !== 'owner' || own.role === 'owner')
}
