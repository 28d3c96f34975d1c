import { Type } from 'typebox'
import { ROLES } from '../../domain/orgs/caller.ts'
import { DateTime, requestObject, stringEnum, nullable, pageOf, Uuid } from '../common.ts'
import { pageQuery } from '../sandboxes/sandboxes.ts'

/** Members of the organization. Source: service description 2.5 and 4.8; the roles from the contract decisions. */

export const MemberReply = Type.Object(
  {
    id: Uuid,
    user_id: Uuid,
    email: Type.String(),
    display_name: Type.Optional(nullable(Type.String())),
    avatar_url: Type.Optional(nullable(Type.String())),
    role: stringEnum(ROLES),
    joined_at: DateTime,
  },
  { title: 'Member', description: 'A person who belongs to the organization.' },
)

export const MemberPage = pageOf(MemberReply, 'MemberPage')
export const ListMembersQuery = requestObject(pageQuery)
