import { Type } from 'typebox'
import { ROLES } from '../../domain/orgs/caller.ts'
import { DateTime, input, oneOf, orNull, page, Uuid } from '../common.ts'
import { pageQuery } from '../sandboxes/sandboxes.ts'

/** Members of the organization. Source: service description 2.5 and 4.8; the roles from the contract decisions. */

export const MemberReply = Type.Object(
  {
    id: Uuid,
    user_id: Uuid,
    email: Type.String(),
    display_name: Type.Optional(orNull(Type.String())),
    avatar_url: Type.Optional(orNull(Type.String())),
    role: oneOf(ROLES),
    joined_at: DateTime,
  },
  { title: 'Member', description: 'A person who belongs to the organization.' },
)

export const MemberPage = page(MemberReply, 'MemberPage')
export const ListMembersQuery = input(pageQuery)
