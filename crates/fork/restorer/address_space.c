/* The child's address space: the stub's goes, the child's comes, the pager gets its userfaultfd. */
#include "restorer.h"

/* The kernel's own mappings wait in the parking area: where they come from and where they go may overlap anything. */
void park_special(const struct plan *plan)
{
	const struct plan_special *special = at(plan, plan->specials.offset);
	u64 place = plan->region_start + plan->parking_offset;
	for (u32 i = 0; i < plan->specials.count; i++) {
		check(plan, STEP_PARK_SPECIAL,
		      CALL5(mremap, special[i].from, special[i].bytes, special[i].bytes,
			    K_MREMAP_MAYMOVE | K_MREMAP_FIXED, place),
		      i);
		place += special[i].bytes;
	}
}

void place_special(const struct plan *plan)
{
	const struct plan_special *special = at(plan, plan->specials.offset);
	u64 place = plan->region_start + plan->parking_offset;
	for (u32 i = 0; i < plan->specials.count; i++) {
		check(plan, STEP_PLACE_SPECIAL,
		      CALL5(mremap, place, special[i].bytes, special[i].bytes, K_MREMAP_MAYMOVE | K_MREMAP_FIXED,
			    special[i].to),
		      i);
		place += special[i].bytes;
	}
}

void unmap_stub(const struct plan *plan)
{
	u64 user_space_end = 0x7ffffffff000ull;
	u64 region_end = plan->region_start + plan->region_bytes;
	check(plan, STEP_UNMAP_STUB, CALL2(munmap, 0, plan->region_start), 0);
	check(plan, STEP_UNMAP_STUB, CALL2(munmap, region_end, user_space_end - region_end), 1);
}

static void advise(const struct plan *plan, const struct plan_mapping *mapping, u32 index)
{
	static const u16 advice_of[][2] = {
		{ MAPPING_HUGE_PAGE, K_MADV_HUGEPAGE },
		{ MAPPING_NO_HUGE_PAGE, K_MADV_NOHUGEPAGE },
		{ MAPPING_WIPE_ON_FORK, K_MADV_WIPEONFORK },
		{ MAPPING_DONT_DUMP, K_MADV_DONTDUMP },
		{ MAPPING_SEQUENTIAL, K_MADV_SEQUENTIAL },
		{ MAPPING_RANDOM, K_MADV_RANDOM },
		{ MAPPING_MERGEABLE, K_MADV_MERGEABLE },
		{ MAPPING_DONT_FORK, K_MADV_DONTFORK },
	};
	for (u32 i = 0; i < sizeof advice_of / sizeof advice_of[0]; i++)
		if (mapping->flags & advice_of[i][0]) {
			long error = CALL3(madvise, mapping->start, mapping->bytes, advice_of[i][1]);
			/* A kernel without huge pages refuses both; its pages are small anyway. */
			if (error != -K_EINVAL || !(advice_of[i][0] & (MAPPING_HUGE_PAGE | MAPPING_NO_HUGE_PAGE)))
				check(plan, STEP_ADVISE, error, index);
		}
}

static void map_one(const struct plan *plan, const struct plan_mapping *mapping, u32 index, int file)
{
	u32 type = mapping->flags & MAPPING_SHARED ? K_MAP_SHARED : K_MAP_PRIVATE;
	u32 flags = K_MAP_FIXED_NOREPLACE | (mapping->flags & MAPPING_DROPPABLE ? K_MAP_DROPPABLE : type);
	if (mapping->kind == MAPPING_ANONYMOUS)
		flags |= K_MAP_ANONYMOUS;
	if (mapping->kind == MAPPING_PASSED)
		file = (int)(plan->fd_base + mapping->source);
	if (mapping->flags & MAPPING_GROWS_DOWN)
		flags |= K_MAP_GROWSDOWN;
	if (mapping->flags & MAPPING_NO_RESERVE)
		flags |= K_MAP_NORESERVE;
	long place = CALL6(mmap, mapping->start, mapping->bytes, mapping->protection, flags, file, mapping->offset);
	if (place != (long)mapping->start)
		give_up(plan, STEP_MAP, place < 0 ? place : -K_EINVAL, index);
	if (mapping->flags & ~(MAPPING_SHARED | MAPPING_GROWS_DOWN | MAPPING_NO_RESERVE | MAPPING_DROPPABLE))
		advise(plan, mapping, index);
}

/* How many mappings, from this one on, are neighbours that differ in nothing but whether they may be read and written. */
static u32 neighbours(const struct plan_mapping *mapping, u32 left)
{
	u32 count = 1;
	if (mapping->kind != MAPPING_ANONYMOUS || (mapping->flags & (MAPPING_SHARED | MAPPING_GROWS_DOWN)))
		return 1;
	while (count < left && mapping[count].kind == MAPPING_ANONYMOUS && mapping[count].flags == mapping->flags &&
	       ((mapping[count].protection ^ mapping->protection) & K_PROT_EXEC) == 0 &&
	       mapping[count].start == mapping[count - 1].start + mapping[count - 1].bytes)
		count++;
	return count;
}

/* Maps neighbours by one call, and gives those another protection that have one: that costs two thirds of mapping each of them. What
 * may be written is counted against the machine's memory, so that it is mapped as what may not be, and gets the right by its size
 * alone. Gives how many were mapped; none where that is no way. */
static u32 map_together(const struct plan *plan, const struct plan_mapping *first, u32 index, u32 count)
{
	u32 common = 0;
	while (common < count && (first[common].protection & K_PROT_WRITE))
		common++;
	if (common == count)
		return 0;
	struct plan_mapping all = first[common];
	all.start = first->start;
	all.bytes = first[count - 1].start + first[count - 1].bytes - first->start;
	map_one(plan, &all, index, -1);
	for (u32 i = 0; i < count; i++)
		if (first[i].protection != all.protection)
			check(plan, STEP_MAP, CALL3(mprotect, first[i].start, first[i].bytes, first[i].protection),
			      index + i);
	return count;
}

/* Mappings that name files come sorted by file, so that each file is opened once and one descriptor suffices. */
void map_all(const struct plan *plan)
{
	const struct plan_mapping *mapping = at(plan, plan->mappings.offset);
	const struct plan_file *files = at(plan, plan->files.offset);
	u32 opened = ~0u;
	int file = -1;

	for (u32 i = 0; i < plan->mappings.count;) {
		u32 count = neighbours(&mapping[i], plan->mappings.count - i);
		u32 mapped = count > 1 ? map_together(plan, &mapping[i], i, count) : 0;
		if (mapped > 0) {
			i += mapped;
			continue;
		}
		if (mapping[i].kind == MAPPING_FILE && mapping[i].source != opened) {
			if (file >= 0)
				CALL1(close, file);
			opened = mapping[i].source;
			file = (int)check(plan, STEP_OPEN_MAPPED_FILE,
					  CALL3(open, at(plan, files[opened].path), files[opened].flags, 0), opened);
		}
		map_one(plan, &mapping[i], i, file);
		i++;
	}
	if (file >= 0)
		CALL1(close, file);
}

/* Pages that raise SIGSEGV although their area may be used. The pager never hears of them. */
void guard_all(const struct plan *plan)
{
	const struct plan_range *guard = at(plan, plan->guards.offset);
	for (u32 i = 0; i < plan->guards.count; i++)
		check(plan, STEP_GUARD, CALL3(madvise, guard[i].start, guard[i].bytes, K_MADV_GUARD_INSTALL), i);
}

/* Behind the guards, which locked memory does not take. On fault: pages come one by one from the pager, as anywhere else. */
void lock_all(const struct plan *plan)
{
	const struct plan_range *locked = at(plan, plan->locked.offset);
	for (u32 i = 0; i < plan->locked.count; i++)
		check(plan, STEP_ADVISE, CALL3(mlock2, locked[i].start, locked[i].bytes, K_MLOCK_ONFAULT), i);
}

/* Before the areas are registered: neither a call nor a fault a page. */
void fill_eager(const struct plan *plan)
{
	const struct plan_eager *eager = at(plan, plan->eager.offset);
	for (u32 i = 0; i < plan->eager.count; i++)
		copy_bytes((void *)eager[i].address, at(plan, eager[i].offset), eager[i].bytes);
}

/* The message says whose it is. `with`: another descriptor that goes along, or -1. */
static void send_descriptor(const struct plan *plan, int socket, int descriptor, int with)
{
	const u64 count = with < 0 ? 1 : 2;
	struct {
		struct k_cmsghdr header;
		i32 fds[2];
	} control = { { sizeof(struct k_cmsghdr) + count * sizeof(i32), K_SOL_SOCKET, K_SCM_RIGHTS }, { descriptor, with } };
	u32 word = plan->process;
	struct k_iovec vector = { &word, sizeof word };
	struct k_msghdr message = { 0, 0, &vector, 1, &control, sizeof control, 0 };
	check(plan, STEP_SEND_USERFAULTFD, CALL3(sendmsg, socket, &message, K_MSG_NOSIGNAL), 0);
}

/* The pager need not have received the descriptor when this returns: while it is on its way a fault simply waits. */
void hand_to_pager(const struct plan *plan)
{
	const struct plan_range *range = at(plan, plan->registered.offset);
	struct k_uffdio_api api = { K_UFFD_API,
				    K_UFFD_FEATURE_EVENT_FORK | K_UFFD_FEATURE_EVENT_REMAP |
					    K_UFFD_FEATURE_EVENT_REMOVE | K_UFFD_FEATURE_EVENT_UNMAP |
					    K_UFFD_FEATURE_THREAD_ID,
				    0 };
	if (plan->registered.count == 0) {
		/* The pager is to know when it has all. */
		if (plan->process_count > 1)
			check(plan, STEP_SEND_USERFAULTFD,
			      CALL6(sendto, (int)plan->fd_base + PASSED_PAGER, &plan->process, sizeof plan->process,
				    K_MSG_NOSIGNAL, 0, 0),
			      0);
		return;
	}
	int uffd = (int)check(plan, STEP_USERFAULTFD, CALL1(userfaultfd, K_O_CLOEXEC | K_O_NONBLOCK), 0);
	check(plan, STEP_USERFAULTFD, CALL3(ioctl, uffd, K_UFFDIO_API, &api), 1);
	for (u32 i = 0; i < plan->registered.count; i++) {
		struct k_uffdio_register area = { range[i].start, range[i].bytes, K_UFFDIO_REGISTER_MODE_MISSING, 0 };
		check(plan, STEP_REGISTER, CALL3(ioctl, uffd, K_UFFDIO_REGISTER, &area), i);
	}
	/* A zygote keeps it itself: nothing of its program runs, and no copy of it gets far whose pages nobody serves. */
	const int keep = (int)plan->fd_base + CHILD_KEEP, pager = (int)plan->fd_base + PASSED_PAGER;
	if (plan->flags & PLAN_ZYGOTE) {
		check(plan, STEP_KEEP_USERFAULTFD, CALL3(dup3, uffd, keep, K_O_CLOEXEC), 0);
		send_descriptor(plan, pager, uffd, -1);
	} else {
		send_descriptor(plan, keep, uffd, -1);
		send_descriptor(plan, pager, uffd, keep);
	}
	CALL1(close, uffd);
}

/* prctl(2), PR_SET_MM_MAP. The executable can be set without CAP_SYS_RESOURCE once nothing of the old one is mapped. */
void set_mm(const struct plan *plan)
{
	struct {
		u64 addresses[11];
		const void *auxv;
		u32 auxv_bytes;
		u32 exe;
	} map;
	for (u32 i = 0; i < 11; i++)
		map.addresses[i] = plan->mm[i];
	map.auxv = at(plan, plan->auxv.offset);
	map.auxv_bytes = plan->auxv.count * 8;
	const int is_passed = (plan->flags & PLAN_EXE_PASSED) != 0;
	map.exe = plan->fd_base + plan->exe;
	if (!is_passed)
		map.exe = (u32)check(plan, STEP_OPEN_EXECUTABLE,
				     CALL3(open, at(plan, plan->exe), K_O_RDONLY | K_O_CLOEXEC, 0), 0);
	check(plan, STEP_SET_MM, CALL5(prctl, K_PR_SET_MM, K_PR_SET_MM_MAP, &map, sizeof map, 0), 0);
	/* What was passed may be another process's, too. */
	if (!is_passed)
		CALL1(close, map.exe);
}
